"""The backends, one folder each; every one computes the recurrence of `rebracket.ops.recurrence` or refuses."""
