"""What is measured: for each family of scenarios a module, which says who plays what."""
