"""`adaptive demo`: real traffic of two tenants on a real stack, and a report of what it gained."""
