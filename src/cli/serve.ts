/* `serve`: the service until a signal. */

import { readConfig } from '../settings/read.ts'
import { escaped, reasonOf } from '../errors.ts'
import { createLog } from '../telemetry/log.ts'
import { VERSION } from '../version.ts'
import { CLOSED, Service } from '../service.ts'
import { variableOf } from '../settings/table.ts'
import { takeSignals } from './signals.ts'

const FLUSH_MS = 1000

/** Serves until a signal ends the process. */
export async function run(given: { readonly dev?: boolean }): Promise<never> {
  const dev = given.dev ? await import('./dev.ts') : undefined
  const config = dev ? dev.configForDev() : readConfig(process.env)
  // JSON for programs. People read what a terminal shows of `--dev`.
  const format = process.stdout.isTTY ? dev?.LINES : undefined
  const log = createLog(config.logLevel, undefined, format)
  const service = new Service({ ...config, log, onFatal: end, nameOf: variableOf })
  // The first signal to stop. Another one ends the process at once.
  const signalled = new Promise<NodeJS.Signals>((resolve) =>
    takeSignals((first) => {
      takeSignals(() => process.exit(1))
      resolve(first)
    }),
  )
  const start = service.listen()
  // A start that a signal overtakes is stopped below, and says there whether it failed.
  const listening = await Promise.race([start, signalled.then(() => undefined)])
  if (listening) {
    const { keys, etcd, data } = config
    const from = { data: etcd?.endpoints ?? data, keys: keys.kind, keysFrom: keys.from }
    log.info('listening', { version: VERSION, ...listening, ...from })
    if (dev) process.stderr.write(dev.invitation(config, listening))
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

function end(error: unknown): void {
  const what = 'memory and disk may differ; ending, and the next start recovers'
  process.stderr.write(`plant-store: ${what}: ${escaped(reasonOf(error))}\n`)
  process.exit(1)
}
