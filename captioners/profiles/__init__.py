"""Where weights come from. Only this package knows paths and hub names."""
