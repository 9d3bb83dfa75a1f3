"""The planner's page: a model and a machine, and what each method makes of them."""
