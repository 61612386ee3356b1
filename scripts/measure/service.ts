import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { PlantDatabase, type Row } from '../../dist/store/sqljs/database.js'
import { nodeFiles } from '../../dist/store/sqljs/files.js'
import { SNAPSHOT, writeSnapshot } from '../../dist/store/sqljs/snapshot.js'
import { AUDIENCE, ISSUER, SECRET } from '../../test/support/tokens.ts'

const MAIN = process.env['MAIN'] || new URL('../../dist/main.js', import.meta.url).pathname
const INSERT_ROWS = 10_000

const running = new Set<ChildProcess>()
const folders = new Set<string>()
process.on('exit', () => {
  for (const child of running) child.kill('SIGKILL')
  for (const folder of folders) rmSync(folder, { recursive: true, force: true })
})

/** A folder that is removed when the process ends. */
export function workFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'plant-store-measure-'))
  folders.add(folder)
  return folder
}

/** Fills a new data directory by `plant-store import`, which builds of every format can do. */
export async function fill(data: string, rows: readonly Row[]): Promise<void> {
  const folder = workFolder()
  const database = await PlantDatabase.building()
  for (let at = 0; at < rows.length; at += INSERT_ROWS)
    database.insert(rows.slice(at, at + INSERT_ROWS), 1)
  await writeSnapshot(
    nodeFiles,
    folder,
    SNAPSHOT,
    database.toFile({ sequence: 1, complete: true }),
    1,
  )
  database.close()
  const child = spawn(process.execPath, [MAIN, 'import', join(folder, SNAPSHOT)], {
    stdio: ['ignore', 'ignore', 'ignore'],
    env: { PATH: process.env['PATH'], PLANTS_DATA: data, PLANTS_MAX_DATA_BYTES: String(2 ** 30) },
  })
  await once(child, 'exit')
  if (child.exitCode !== 0) throw new Error(`the import ended with ${child.exitCode}`)
}

export interface Launched {
  readonly child: ChildProcess
  readonly port: number
  readonly adminPort: number
  residentMiB(): number
  stop(): Promise<void>
}

/**
 * Starts the service on one processor, where `taskset` is there; the load is meant to be on the
 * other.
 */
export async function launch(
  data: string,
  env: Readonly<Record<string, string>> = {},
  main = MAIN,
): Promise<Launched> {
  const child = spawn(
    'taskset',
    ['-c', '0', 'nice', '-n', '-10', process.execPath, main, 'serve'],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: {
        PATH: process.env['PATH'],
        PLANTS_LISTEN: '127.0.0.1:0',
        PLANTS_ADMIN_LISTEN: '127.0.0.1:0',
        PLANTS_DATA: data,
        PLANTS_MAX_DATA_BYTES: String(2 ** 30),
        PLANTS_ISSUER: ISSUER,
        PLANTS_AUDIENCE: AUDIENCE,
        ...('PLANTS_JWKS_FILE' in env ? {} : { PLANTS_JWT_SECRET: SECRET }),
        ...env,
      },
    },
  )
  running.add(child)
  let ports: readonly number[] | undefined
  for await (const line of createInterface({ input: child.stdout })) {
    const found =
      /"message":"listening".*"plants":"http:\/\/[^"]*:(\d+)","admin":"http:\/\/[^"]*:(\d+)"/.exec(
        line,
      )
    if (!found) continue
    ports = found.slice(1).map(Number)
    break
  }
  // Unread lines would be dropped and counted, as designed; here they only cost time.
  child.stdout.resume()
  const [port, adminPort] = ports ?? []
  if (port === undefined || adminPort === undefined) throw new Error('the service did not start')
  return {
    child,
    port,
    adminPort,
    residentMiB: () =>
      Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1]) / 1024,
    async stop() {
      child.kill('SIGKILL')
      await once(child, 'exit')
      running.delete(child)
    },
  }
}
