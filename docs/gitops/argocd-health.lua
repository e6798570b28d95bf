-- Health of a SupervisorMiddleware, SandboxPolicy or ClusterSandboxPolicy for Argo CD. `obj` is the object.
local health = {status = "Progressing", message = "not judged yet"}
local status = obj.status or {}
if status.observedGeneration ~= obj.metadata.generation then
  return health
end
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Stalled" and condition.status == "True" then
    return {status = "Degraded", message = condition.message}
  end
  if condition.type == "Ready" then
    health.message = condition.message
    if condition.status == "True" then
      health.status = "Healthy"
    elseif condition.status == "False" then
      health.status = "Degraded"
    end
  end
end
return health
