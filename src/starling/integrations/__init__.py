"""`starling.Swarm` in the training loops of other libraries. Each module needs its library, and is imported by name.

    starling.integrations.transformers    SwarmCallback, for the Trainer of transformers and those of TRL
    starling.integrations.lightning       SwarmCallback, for the Trainer of Lightning
    starling.integrations.distributed     Swarm, for scripts with several ranks

With Accelerate a loop is one's own: `starling.Swarm` takes its prepared model and optimizer.
"""
