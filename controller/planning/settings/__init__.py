"""What AlterConfigs changes of nodes, groups and subscriptions, and the rules for topics."""
