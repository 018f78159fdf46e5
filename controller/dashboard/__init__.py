"""The page at `/`: what happens to each tenant's speculation, and the buttons that change it."""
