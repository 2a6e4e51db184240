"""What money does to pods: held ones are released, those of a spent budget evicted, ended ones let go."""
