"""Classification of CIFAR-10: the architecture of a cell is searched, retrained and tested."""
