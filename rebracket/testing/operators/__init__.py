"""One file for each operator under the laws: its sample, how one is drawn, its definition, and laws of its own."""
