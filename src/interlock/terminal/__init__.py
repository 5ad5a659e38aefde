"""What commands share: output, options, finding and reaching a node."""
