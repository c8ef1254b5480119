"""Many replicas of one network on one device, stepped together."""
