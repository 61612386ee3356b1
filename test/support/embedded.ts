import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { createPlantService, type PlantService, type PlantServiceConfig } from '../../dist/index.js'
import { temporaryDirectory } from './service.ts'
import { AUDIENCE, ISSUER, SECRET } from './tokens.ts'

export const EMBEDDED: PlantServiceConfig = {
  issuer: ISSUER,
  audience: AUDIENCE,
  jwtSecret: SECRET,
  listen: '127.0.0.1:0',
  adminListen: '127.0.0.1:0',
  logLevel: 'silent',
}

/** A service that is neither open nor listening, closed when the test ends. */
export async function embed(
  t: TestContext,
  options: Partial<PlantServiceConfig> = {},
): Promise<PlantService> {
  const data = options.data ?? join(await temporaryDirectory(), 'data')
  const service = createPlantService({ ...EMBEDDED, ...options, data })
  t.after(() => service.close())
  return service
}

/** The port of an address as the service returns it. */
export function portOf(url: string): number {
  return Number(new URL(url).port)
}
