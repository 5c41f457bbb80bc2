"""What every backend, write rule and decay must keep: samples, laws, error budgets, and faults that laws must catch."""
