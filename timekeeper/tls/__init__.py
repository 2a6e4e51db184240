"""The timekeeper's own authority and certificate: made by whichever replica is first, read by the others."""
