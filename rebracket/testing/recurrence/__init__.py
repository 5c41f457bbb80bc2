"""The laws that only the recurrence has: write rules, decays, modes, steps, and what is stored."""
