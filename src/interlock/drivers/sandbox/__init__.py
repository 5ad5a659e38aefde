"""Where the servers of drivers may connect to, and how they are kept from everything else."""
