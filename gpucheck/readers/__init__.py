"""Host to partial facts, one module per source. Readers describe; they do not judge."""
