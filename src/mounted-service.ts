/* The service for another application: with a handler for the application's own servers. */

import type { Config } from './config.ts'
import { Adapter } from './http/adapter.ts'
import { Service, type PlantService, type ServiceHooks } from './service.ts'

/** @throws ConfigError if the keys cannot be used. */
export function createMountedService(config: Config, hooks: ServiceHooks): PlantService {
  const service = new Service(config, hooks)
  const handler = service.mount((responder) => new Adapter(responder))
  return Object.assign(service, { handler })
}
