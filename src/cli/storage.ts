import { readConfig } from '../config.ts'
import { openStorage } from '../service.ts'
import { checkStore } from './check.ts'
import { exportStore } from './export.ts'
import { importStore } from './import.ts'

/* The commands that work on the storage itself, and what they print. */

export function check(): Promise<string> {
  return checkStore(dataDirectory('check'))
}

export function exportTo(file: string): Promise<string> {
  return exportStore(dataDirectory('export'), file)
}

export function importFrom(file: string): Promise<string> {
  const config = readConfig(process.env, 'storage')
  return importStore(
    (log, onFatal) => openStorage(config, log, onFatal),
    file,
    (line) => process.stderr.write(`${line}\n`),
  )
}

function dataDirectory(command: string): string {
  const { etcd, dataDirectory } = readConfig(process.env, 'storage')
  if (!etcd) return dataDirectory
  const what = `${command} is for the embedded store`
  const look = 'look at what is in etcd with "etcdctl endpoint status"'
  throw new Error(`${what}: ${look}, and save it with "etcdctl snapshot save"`)
}
