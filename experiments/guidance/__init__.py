"""llguidance and xgrammar side by side: what each enforces, and what that costs."""
