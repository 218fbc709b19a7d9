"""The pages of the dashboard, a file for each noun."""
