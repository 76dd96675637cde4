"""What a master shows over HTTP: health, metrics, REST. It reads a view and changes nothing."""
