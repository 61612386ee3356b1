import { join } from 'node:path'
import type { Row } from '../../dist/store/sqljs/journal-format.js'
import { temporaryDirectorySync } from '../../test/support/directories.ts'
import {
  type Environment,
  launch,
  type Launched,
  MAIN,
  type Ports,
  serviceEnvironment,
} from '../../test/support/launch.ts'
import { type Memory, memoryOf } from '../../test/support/memory.ts'
import { run } from '../../test/support/process.ts'
import { writeStore } from '../../test/support/store-files.ts'

const BUILD = process.env['MAIN'] || MAIN
const MAX_DATA = { PLANTS_MAX_DATA_BYTES: String(2 ** 29) }

/** A data directory with these plants. Another build makes it with its own `import`. */
export async function filledDirectory(rows: Iterable<Row>): Promise<string> {
  const data = join(temporaryDirectorySync(), 'data')
  if (BUILD === MAIN) {
    await writeStore(data, rows)
    return data
  }
  const snapshot = await writeStore(temporaryDirectorySync(), rows)
  const env = { PLANTS_DATA: data, ...MAX_DATA }
  const { status, stderr } = await run(['import', snapshot], env, undefined, BUILD)
  if (status !== 0) throw new Error(`the import ended with ${status}: ${stderr}`)
  return data
}

export interface MeasuredService extends Launched, Ports {
  memory(): Memory
}

/** Starts the service with priority on one core; the load is meant to use the other. */
export async function startMeasured(data: string, env: Environment = {}): Promise<MeasuredService> {
  const prefix = ['taskset', '-c', '0', 'nice', '-n', '-10']
  const settings = serviceEnvironment(data, { ...MAX_DATA, ...env })
  const launched = launch(settings, { main: BUILD, prefix, onLines: () => {} })
  const ports = await launched.listening
  return { ...launched, ...ports, memory: () => memoryOf(launched.pid) }
}

export function mib(value: number): string {
  return `${value.toFixed(0)} MiB`
}
