"""The ground floor, with no mathematics: files, open folders, checks of plain values, tensors, random numbers."""
