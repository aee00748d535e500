"""What a decoder layer is made of."""
