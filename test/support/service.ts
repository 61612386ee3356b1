import assert from 'node:assert/strict'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { readKeys } from '../../dist/auth/keys.js'
import { readWithoutKeys } from '../../dist/cli/settings.js'
import { readConfig, type ServiceConfig } from '../../dist/settings/read.js'
import { ConfigError } from '../../dist/errors.js'
import { createLog } from '../../dist/telemetry/log.js'
import type { Output } from '../../dist/telemetry/log-writer.js'
import { Adapter } from '../../dist/http/adapter.js'
import { createPlantService, type PlantServiceConfig } from '../../dist/index.js'
import { type PlantService, Service, type ServiceOptions } from '../../dist/service.js'
import { checkDirectory } from '../../dist/store/sqljs/inspect.js'
import { temporaryDirectory } from './directories.ts'
import { portOf } from './ports.ts'
import { AUDIENCE, ISSUER, SECRET } from './tokens.ts'

/** The default settings. */
export const DEFAULTS = readWithoutKeys({}, 'ignored')

export { temporaryDirectory }

/** What is wrong with the settings of a service. */
export function problems(env: Readonly<Record<string, string>>): readonly string[] {
  try {
    readConfig(env)
  } catch (error) {
    assert.ok(error instanceof ConfigError)
    return error.problems
  }
  return []
}

export interface RunningService {
  readonly service: PlantService
  readonly port: number
  readonly adminPort: number
  readonly dataDirectory: string
  readonly logLines: readonly string[]
  close(): Promise<void>
}

/** A service with its handler, of any configuration. */
export function mountedService(
  config: ServiceConfig,
  hooks: Pick<ServiceOptions, 'log' | 'onFatal'>,
): PlantService {
  const service = new Service({ ...config, ...hooks, nameOf: (option) => option })
  return service.mount((responder) => new Adapter(responder, (message) => hooks.log.error(message)))
}

/**
 * The whole service in this process on free ports, with its data in a temporary directory; closed
 * and checked when the test ends. Without other settings of keys, a secret verifies tokens.
 */
export async function startService(
  t: TestContext,
  overrides: Partial<ServiceConfig> = {},
): Promise<RunningService> {
  const dataDirectory = overrides.data ?? join(await temporaryDirectory(), 'data')
  const settings = {
    ...DEFAULTS,
    // A slow test must not lose its requests.
    shutdownTimeout: 120,
    listen: { host: '127.0.0.1', port: 0 },
    adminListen: { host: '127.0.0.1', port: 0 },
    issuer: ISSUER,
    audience: [AUDIENCE],
    jwtSecret: (overrides.jwksFile ?? overrides.jwksUrl) ? undefined : Buffer.from(SECRET),
    ...overrides,
    data: dataDirectory,
  }
  const config = { ...settings, keys: readKeys(settings) }
  const logLines: string[] = []
  const write: Output = (lines, done) => {
    logLines.push(
      ...String(lines)
        .split('\n')
        .filter((line) => line !== ''),
    )
    done()
  }
  const service = mountedService(config, {
    log: createLog(config.logLevel, write),
    onFatal(error) {
      throw error
    },
  })
  const { plants, admin } = await service.listen().catch(async (error: unknown) => {
    await service.close()
    throw error
  })
  let closed: Promise<void> | undefined
  const close = (): Promise<void> => (closed ??= service.close())
  t.after(async () => {
    await close()
    if (!config.etcd) await checkDirectory(dataDirectory)
  })
  return { service, port: portOf(plants), adminPort: portOf(admin), dataDirectory, logLines, close }
}

/** As an application has it: neither open nor listening, closed when the test ends. */
export async function embed(
  t: TestContext,
  options: Partial<PlantServiceConfig> = {},
): Promise<PlantService> {
  const service = createPlantService({
    issuer: ISSUER,
    audience: AUDIENCE,
    jwtSecret: SECRET,
    listen: '127.0.0.1:0',
    adminListen: '127.0.0.1:0',
    logLevel: 'silent',
    ...options,
    // The default is the directory of the person who runs the tests.
    data: options.data ?? join(await temporaryDirectory(), 'data'),
  })
  t.after(() => service.close())
  return service
}
