"""Pure. Measuring endpoints, and scoring the speed model against measurements."""
