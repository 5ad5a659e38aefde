"""The execution safety loop: steps are reported before they are done, judged, and held against what
is really done; and a human outside the model's reach lets on whoever was stopped."""
