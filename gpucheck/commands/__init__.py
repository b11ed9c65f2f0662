"""Commands that are imported only when they are called, or listed: each module enters its own into the app."""
