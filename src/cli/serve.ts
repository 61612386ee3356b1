/* `serve`: the service until a signal, and what `--dev` prints. */

import { readKeys } from '../auth/keys.ts'
import { readConfig, readWithoutKeys, type ServiceConfig } from '../settings/read.ts'
import { escaped, reasonOf } from '../errors.ts'
import { createLog } from '../telemetry/log.ts'
import { VERSION } from '../version.ts'
import { CLOSED, type Listening, Service } from '../service.ts'
import { variableOf } from '../settings/table.ts'
import { takeSignals } from './signals.ts'

const FLUSH_MS = 1000

/** Serves until a signal ends the process. */
export async function run({ dev = false }: { readonly dev?: boolean }): Promise<never> {
  const config = dev ? await configForDev() : readConfig(process.env)
  // JSON for programs. People read what a terminal shows of `--dev`.
  const format = dev && process.stdout.isTTY ? (await import('./lines.ts')).LINES : undefined
  const log = createLog(config.logLevel, undefined, format)
  const service = new Service({ ...config, log, onFatal: end, nameOf: variableOf })
  const signalled = firstSignal()
  const start = service.listen()
  // A start that a signal overtakes is stopped below, and says there whether it failed.
  const listening = await Promise.race([start, signalled.then(() => undefined)])
  if (listening) {
    const { keys, etcd, data } = config
    const from = { data: etcd?.endpoints ?? data, keys: keys.kind, keysFrom: keys.from }
    log.info('listening', { version: VERSION, ...listening, ...from })
    if (dev) process.stderr.write(await invitation(config, listening))
  }
  log.info('stopping', { signal: await signalled })
  await service.close()
  await start.catch((error: unknown) => {
    if (reasonOf(error) !== CLOSED) log.error('the start failed while it was stopped', { error })
  })
  log.info('stopped')
  await log.flush(FLUSH_MS)
  process.exit(0)
}

async function configForDev(): Promise<ServiceConfig> {
  const config = readWithoutKeys(process.env, 'refused')
  const { readOrCreateDevKey } = await import('./token.ts')
  const jwtSecret = readOrCreateDevKey(config.data)
  return { ...config, jwtSecret, keys: readKeys({ issuer: config.issuer, jwtSecret }) }
}

function end(error: unknown): void {
  const what = 'memory and disk may differ; ending, and the next start recovers'
  process.stderr.write(`plant-store: ${what}: ${escaped(reasonOf(error))}\n`)
  process.exit(1)
}

/** The first signal to stop. Another one ends the process at once. */
function firstSignal(): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    takeSignals((first) => {
      takeSignals(() => process.exit(1))
      resolve(first)
    })
  })
}

/** Lines to paste: they create a plant and list it. */
async function invitation(config: ServiceConfig, { plants }: Listening): Promise<string> {
  if (!config.jwtSecret) return ''
  const { signDevToken } = await import('./token.ts')
  const scopes = [config.readScope, config.writeScope].filter((name) => name !== undefined)
  const wanted = { sub: 'alice', scope: scopes.join(' ') || undefined }
  const token = signDevToken(config.jwtSecret, config, wanted)
  const socket = /^unix:(.*)$/s.exec(plants)?.[1]
  const target = socket ? `--unix-socket '${socket}' http://localhost/plants` : `${plants}/plants`
  const curl = `curl -i ${target} -H 'Authorization: Bearer ${token}'`
  const where = config.etcd ? 'The key is' : 'Plants and key are'
  const plant = '{"id": 1, "name": "Monstera", "tag": "indoor"}'
  return `
The plant store listens on ${plants} with a development key; never use that key for anything real.
${where} in ${config.data}.
Paste these in another shell, to create a plant of alice and to list it (her token: 8 hours):

${curl} -H 'Content-Type: application/json' -d '${plant}'

${curl}

`
}
