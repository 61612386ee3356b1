/* The built service in another application's server. It has the settings of `serve`. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createPlantService } from '../../dist/index.js'

const setting = (name: string): string => process.env[`PLANTS_${name}`] ?? ''

const service = createPlantService({
  issuer: setting('ISSUER'),
  audience: setting('AUDIENCE'),
  jwtSecret: setting('JWT_SECRET'),
  data: setting('DATA'),
  maxDataBytes: Number(setting('MAX_DATA_BYTES')),
  adminListen: setting('ADMIN_LISTEN'),
  listen: setting('ADMIN_LISTEN'),
  logLevel: 'silent',
})
const { admin } = await service.listen()
const server = createServer(service.handler).listen(0, '127.0.0.1', () => {
  // It listens on TCP.
  const { port } = server.address() as AddressInfo
  console.log(JSON.stringify({ message: 'listening', plants: `http://127.0.0.1:${port}`, admin }))
})
