/* What an application imports to embed the service. */

import './version.ts'
import { ConfigError } from './errors.ts'
import { Adapter } from './http/adapter.ts'
import { type PlantService, Service } from './service.ts'
import { runtimeRefusal } from './runtime.ts'
import { readOptions } from './settings/program.ts'
import type { PlantServiceConfig } from './settings/options.ts'
import { createCallbackLog, createLog } from './telemetry/log.ts'

export { ConfigError } from './errors.ts'
export type { Health } from './api/admin.ts'
export type { LogLevel, LogLine, LogRequests, OnLog } from './telemetry/log.ts'
export type { Listening, PlantService } from './service.ts'
export type { PlantServiceConfig } from './settings/options.ts'

/**
 * A plant store inside another program: `listen` opens its own listeners, and `handler` mounts in
 * any `node:http` server. Paths are resolved at once. It reads no setting from the
 * environment, handles no signal, and does not end the process; `index.md` has what Node may do.
 * @param onFatal is called when memory and disk may differ. From then on every POST gets 503,
 * and the program must create a new service.
 * @throws ConfigError that names every problem by its option.
 */
export function createPlantService(
  options: PlantServiceConfig,
  onFatal: (error: unknown) => void = () => {},
): PlantService {
  const refusal = runtimeRefusal()
  if (refusal !== undefined) throw new ConfigError([refusal.message])
  if (typeof onFatal !== 'function') throw new ConfigError(['onFatal must be a function'])
  const config = readOptions(options)
  const { logLevel } = config
  const { onLog } = options
  const log = onLog ? createCallbackLog(logLevel, onLog) : createLog(logLevel)
  const service = new Service({ ...config, log, onFatal, nameOf: (option) => option })
  return service.mount((responder) => new Adapter(responder, log.error))
}
