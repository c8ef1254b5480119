"""What comparisons, forecasts and twins return."""
