"""Which of several replicas of a model answers a request, by cached prefixes and forecasts."""
