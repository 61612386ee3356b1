/* `serve`: the service until a signal, and what `--dev` prints. */

import { readConfig, readWithoutKeys, type ServiceConfig } from '../settings/read.ts'
import { readKeys } from '../auth/keys.ts'
import { escaped, reasonOf } from '../errors.ts'
import { createLog, type Log } from '../telemetry/log.ts'
import { VERSION } from '../version.ts'
import { CLOSED, type Listening, Service } from '../service.ts'
import { variableOf } from '../settings/table.ts'

const FLUSH_MS = 1000
const STOP_SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const

/** Serves until a signal ends the process. */
export async function run(_: string, { dev = false }: { dev?: boolean }): Promise<undefined> {
  const config = dev ? await configureDev() : readConfig(process.env)
  const log = await openLog(config, dev)
  const service = new Service({ ...config, log, onFatal: end, nameOf: variableOf })
  const start = service.listen().catch((error: unknown) => {
    if (!isStopping()) throw error
    if (reasonOf(error) !== CLOSED) log.error('the start failed while it was stopped', { error })
    return undefined
  })
  const isStopping = stopOnSignal(service, start, log)
  const listening = await start
  if (!listening) return
  log.info('listening', {
    version: VERSION,
    ...listening,
    data: config.etcd?.endpoints ?? config.data,
    keys: config.keys.kind,
    keysFrom: config.keys.from,
  })
  if (dev) process.stderr.write(await invitation(config, listening))
}

/** JSON for programs. People read what a terminal shows of `--dev`. */
async function openLog({ logLevel }: ServiceConfig, dev: boolean): Promise<Log> {
  if (!dev || !process.stdout.isTTY) return createLog(logLevel)
  const { LINES } = await import('./lines.ts')
  return createLog(logLevel, undefined, LINES)
}

async function configureDev(): Promise<ServiceConfig> {
  const config = readWithoutKeys(process.env, 'refused')
  const { devKeyPath, readOrCreateDevKey } = await import('./token.ts')
  const jwtSecret = await readOrCreateDevKey(devKeyPath(config))
  return { ...config, jwtSecret, keys: readKeys({ issuer: config.issuer, jwtSecret }) }
}

function end(error: unknown): void {
  const what = 'memory and disk may differ; ending, and the next start recovers'
  process.stderr.write(`plant-store: ${what}: ${escaped(reasonOf(error))}\n`)
  process.exit(1)
}

/** Stops the service at a signal, and ends the process at the next one. */
function stopOnSignal(service: Service, start: Promise<unknown>, log: Log): () => boolean {
  let isStopping = false
  const stop = async (signal: NodeJS.Signals): Promise<void> => {
    if (isStopping) process.exit(1)
    isStopping = true
    log.info('stopping', { signal })
    await Promise.all([service.close(), start])
    log.info('stopped')
    await log.flush(FLUSH_MS)
    process.exit(0)
  }
  for (const signal of STOP_SIGNALS) process.on(signal, (name) => void stop(name))
  return () => isStopping
}

/** Lines to paste: they create a plant and list it. */
async function invitation(config: ServiceConfig, { plants }: Listening): Promise<string> {
  if (!config.jwtSecret) return ''
  const { devClaims, signDevToken } = await import('./token.ts')
  const scopes = [config.readScope, config.writeScope].filter((name) => name !== undefined)
  const claims = devClaims(config, 'alice', scopes.join(' ') || undefined)
  const token = signDevToken(config.jwtSecret, claims)
  const socket = /^unix:(.*)$/s.exec(plants)?.[1]
  const target =
    socket === undefined ? `${plants}/plants` : `--unix-socket '${socket}' http://localhost/plants`
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
