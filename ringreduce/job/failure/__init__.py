"""What a failing rank tells the other ranks, its launcher, and whoever reads its report afterwards."""
