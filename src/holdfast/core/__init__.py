"""The catalogue and its rules: pure code that is given `now` and imports no clock, socket, thread or logger."""
