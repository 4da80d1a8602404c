"""What a chain does to rows, one small value per step."""
