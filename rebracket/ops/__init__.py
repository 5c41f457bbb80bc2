"""The mathematics: the operator, its write rules, its state, and what joins stretches of sequence."""
