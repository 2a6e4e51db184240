"""Pure functions from an AdmissionReview and the knowledge of the cluster to a verdict and its patch."""
