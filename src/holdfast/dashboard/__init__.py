"""A master over HTTP: health, metrics, REST. It reads a view and changes nothing."""
