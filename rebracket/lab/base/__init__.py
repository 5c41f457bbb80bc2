"""What experiments share: their interface, verdicts, tasks and training, and how they are run, stored and reported."""
