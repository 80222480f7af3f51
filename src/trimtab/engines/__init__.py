"""Pure. One file per engine: settings become argv and env; readiness path and capabilities."""
