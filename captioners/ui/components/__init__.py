"""What the tabs are built of: the control panel, the controller behind a card, downloads, links, examples."""
