"""Jobs whose hosts TCP connects: how ranks find rank 0, prove that they belong to the job, and meet."""
