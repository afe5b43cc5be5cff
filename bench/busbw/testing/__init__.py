"""What tests replace the world with; public, for the tests of users too."""
