"""Pure. What fits: budgets, choice of settings, the plan and the reasons against others."""
